"""The options of the commands: sections that commands share, and the objects that they are turned into."""
