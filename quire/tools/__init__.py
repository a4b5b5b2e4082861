"""What people run: demo, chat, replay, sweep, events, disagg, prefill, fsck."""
