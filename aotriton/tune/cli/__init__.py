"""The command line: options of a family, and what each command does with them."""
