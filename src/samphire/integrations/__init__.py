"""Other people's trainers and trackers. Each module imports its library, an extra of samphire.

``samphire.integrations.transformers``, ``.accelerate`` and ``.lightning`` are thin: all of them run the trainer's own
forward and backward once per pass by :meth:`samphire.SharpnessAware.gradient`. So does one of your own::

    loss = opt.gradient(lambda: trainer.forward_and_backward(batch))     # then the trainer clips, steps and logs

It tells ``opt`` of a scaler (``opt.scaler``) and of a wrapped model (``opt.rebind``), and what must happen once per
step asks ``samphire.optim.in_perturbed_pass()``.
"""
