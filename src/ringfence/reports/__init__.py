"""Results turned into tables, pictures and pages; the numbers are computed elsewhere."""
