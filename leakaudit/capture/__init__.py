"""Other ways to a trace: programs that are listened to, and processes that really exchange."""
