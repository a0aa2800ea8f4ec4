"""Pictures, all in one style: samples and films, figures of a run, charts of numbers."""
