"""What `pmal data check` looks at."""
