"""What must hold of a cache, part by part; `check` looks at all of it. Changes nothing."""
