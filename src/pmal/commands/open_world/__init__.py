"""The commands of the open-world loop: groups of what was rejected, corrected answers, versions, a watch."""
