"""What every engine does to a request beside the model: admission, drawing tokens, and its end."""
