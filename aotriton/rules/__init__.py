"""What exists and what won: archs, kernel descriptions, bins, image names and the tuning database."""
