"""Bills: what each tenant used."""
