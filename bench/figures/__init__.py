"""What the documents say of results: README's summary and the pages' tables. ``bench/readme.py`` puts it into them."""
