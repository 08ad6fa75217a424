"""Pages for the browser: numbers (`*_numbers.py`), what is shown of them (`*_page.py`), and one HTML file (`render.py`)."""
