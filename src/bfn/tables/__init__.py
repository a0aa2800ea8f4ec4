"""Tables: columns of numbers, dates, categories and missing values, as variables of one model."""
