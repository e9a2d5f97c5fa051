"""Device code of rms_norm."""
