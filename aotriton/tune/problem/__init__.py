"""What is tuned: problems, their candidates, and what a family says of them."""
