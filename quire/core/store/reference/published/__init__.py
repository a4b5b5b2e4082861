"""Who has which published page, for routers."""
