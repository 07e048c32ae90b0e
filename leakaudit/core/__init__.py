"""The nouns that every room speaks: trace, adversary, leak, reconstruction, claim, verdict."""
