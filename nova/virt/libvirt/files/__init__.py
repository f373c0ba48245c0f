"""The files of guests: paths, creation, copies between hosts, limits of sizes."""
