"""What a replay is run with: settings, the shape of the model, the pace of the engine. Runs nothing."""
