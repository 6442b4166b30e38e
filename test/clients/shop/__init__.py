"""A Django application on fenced tables, for test_mappers.py, which makes its migrations."""
