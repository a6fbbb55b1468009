"""Pictures and interactive views that the lessons show."""
