from django.db import models


class Customer(models.Model):
    """Its table has no version column."""
    name = models.CharField(max_length=50)


class Order(models.Model):
    """Names the version column, which the triggers set."""
    customer = models.ForeignKey(Customer, models.CASCADE)
    state = models.CharField(max_length=20, default='new')
    total = models.IntegerField(default=0)
    version = models.BigIntegerField(default=0, editable=False)
