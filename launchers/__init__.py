"""How worker processes are started, and how a worker learns its rank. Standard library only."""
