"""What the database has, for others and from others: export, import, finalists, reports."""
