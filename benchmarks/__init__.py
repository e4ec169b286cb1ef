"""What is measured, and what is generated for the documentation: not part of the installed package."""
