"""What HAMi's tools and vendors' plugins expect: their events, records and turns."""
