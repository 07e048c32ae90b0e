"""From a raw log to messages in the terms of a protocol."""
