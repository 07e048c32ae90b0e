"""Readers of bytes that strangers wrote: nothing in them is executed, and sizes are limited."""
