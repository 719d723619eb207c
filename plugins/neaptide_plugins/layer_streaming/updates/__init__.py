"""For streamed blocks: stores gradients, clips gradients, and runs the optimizer's step."""
