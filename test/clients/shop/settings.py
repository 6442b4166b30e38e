"""From the environment: where PostgreSQL is (as libpq reads it), and the type of primary keys (SHOP_AUTO_FIELD)."""

import os

DATABASES = {'default': {'ENGINE': 'django.db.backends.postgresql', 'NAME': os.environ['PGDATABASE'],
                         'USER': os.environ['PGUSER'], 'HOST': os.environ['PGHOST'], 'PORT': os.environ['PGPORT']}}
INSTALLED_APPS = ['shop']
DEFAULT_AUTO_FIELD = 'django.db.models.' + os.environ['SHOP_AUTO_FIELD']
SECRET_KEY = 'of a test'
USE_TZ = True
