"""What people read: the summary table, the plots, the HTML page."""
