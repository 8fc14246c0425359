"""Files as earlier versions of poise wrote them, and how they were made."""
