"""Other people's trainers and trackers. Each module imports its library, an extra of samphire.

``samphire.integrations.transformers``, ``.accelerate`` and ``.lightning`` are thin: all of them run the trainer's own
forward and backward once per pass by :meth:`samphire.SharpnessAware.gradient`.
"""
