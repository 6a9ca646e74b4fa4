"""What is said about memories, how long they are kept, and how they are let go."""
