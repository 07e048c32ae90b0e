"""What a server and its clients send each other, in any framework that knows which is which."""
