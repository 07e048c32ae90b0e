"""From what an adversary observes to what it determines of each node's gradients."""
