"""Show a dump: pick what was asked for (`select`), hand it to `report` (`command`)."""
