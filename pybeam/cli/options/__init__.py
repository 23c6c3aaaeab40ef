"""The options of the commands: sections of them that commands share, and what they are turned into."""
