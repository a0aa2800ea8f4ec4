"""A page that shows what a model believes: live (`bfn serve`), or recorded (`bfn view`)."""
