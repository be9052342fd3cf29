"""What a walk shows to be damaged, who was lost there, and the records that stand in for them."""
