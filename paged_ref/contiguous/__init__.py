"""The baseline that paging replaced: one contiguous reservation per request (chapter 1)."""
