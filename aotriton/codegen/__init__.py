"""Code generation: from the tuning database to C++ tables and embedded images."""
