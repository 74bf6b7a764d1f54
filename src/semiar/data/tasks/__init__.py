"""Named tasks: where their data lies, how a row becomes a chat, and how answers are scored."""
