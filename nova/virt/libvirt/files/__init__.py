"""The files of guests: where they are, how they are made, copied and served, and how large they may be."""
