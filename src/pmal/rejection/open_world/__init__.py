"""What comes after training: groups among what was rejected, corrected answers, a watch over traffic."""
