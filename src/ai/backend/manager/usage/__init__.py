"""Reports the resources that sessions used."""
