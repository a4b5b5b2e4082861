"""What memory, disks and shared stores of this machine are worth: places that are measured, and how."""
