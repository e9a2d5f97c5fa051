"""Cost models of images: fitted to timings, or to a static model where no GPU is."""
