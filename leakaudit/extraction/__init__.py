"""From what an adversary hears to what it determines of each node's gradients."""
