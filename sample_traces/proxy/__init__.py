"""A model of two training steps of the 8-layer DeepSeek-V4-Flash proxy, and how each collector would record them."""
