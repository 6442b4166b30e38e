# FenceTest/LibraryModel.pm
#    What the function library must answer: a model of doc/protocol.md ("Redis functions") in hashes and Perl's 64-bit
#    integers. Written from the rules, not from fence.lua, and on purpose without its tricks.
#
# A model holds what the keys of the test and the memory of the process should be. run(words) applies a command and
# returns the reply it should have: an array, a number, or for what only the server can choose NEW_TICKET and the fence in
# its place (learn_ticket then tells it), or SOME_MS. Tokens too are the server's choice: unknown_tokens names the domains whose token has to
# be asked for, learn_token tells it and objects to one that was in use before.
package FenceTest::LibraryModel;

use strict;
use warnings;

use FenceTest::Router 'slot_of';

use constant { NEW_TICKET => '<a new ticket>', SOME_MS => '<milliseconds>' };

sub new
{
	my ($class) = @_;

	return bless {
		identity => undef,
		spaces   => {},    # namespace -> {owner, timeline, epoch, number, until, slots, had, pending, domains}
		keys     => {},    # as Redis should hold them
		gens     => 0,     # every generation has a number here ...
		token    => {},    # ... and a token there
		used     => {},    # tokens and tickets that were given
	}, $class;
}

sub run
{
	my ($self, $command, @words) = @_;

	if ($command eq 'FCALL')
	{
		my ($function, $nkeys, @rest) = @words;
		my @keys = splice @rest, 0, $nkeys;
		return $self->$function(\@keys, \@rest);
	}
	return $self->{keys} = {}, 'OK' if $command =~ /^FLUSH/;
	return defined delete $self->{keys}{ $words[0] } ? 1 : 0 if $command eq 'DEL';
	return $self->{keys}{ $words[0] } = $words[1], 'OK' if $command eq 'SET';
	die "no model of $command";
}

# The process forgot everything.
sub forget
{
	my ($self) = @_;

	$self->{identity} = undef;
	$self->{spaces} = {};
	return;
}

# ---------------------------------------------------------------------------------------------------------------------
# What the server chose
# ---------------------------------------------------------------------------------------------------------------------

sub unknown_tokens
{
	my ($self) = @_;
	my @unknown;

	while (my ($ns, $space) = each %{ $self->{spaces} })
	{
		while (my ($name, $domain) = each %{ $space->{domains} })
		{
			push @unknown, [ $ns, $name ] unless defined $self->{token}{ $domain->{gen} };
		}
	}
	return @unknown;
}

sub token
{
	my ($self, $ns, $name) = @_;
	my $space = $self->{spaces}{$ns} // return;
	my $domain = $space->{domains}{$name} // return;

	return $self->{token}{ $domain->{gen} };
}

# Returns what is wrong with it, or nothing.
sub learn_token
{
	my ($self, $ns, $name, $token) = @_;

	my $domain = $self->{spaces}{$ns}{domains}{$name};
	my $unknown = $self->_token($domain);

	return "token '$token' of $ns $name is not new" if $self->{used}{$token}++;
	s/^\Q$unknown\E / "$token " /e foreach values %{ $self->{keys} };
	$self->{token}{ $domain->{gen} } = $token;
	return;
}

# A commit may be the first that is heard of a domain, and write with the token that is learned afterwards.
sub _token
{
	my ($self, $domain) = @_;

	return $self->{token}{ $domain->{gen} } // "<gen$domain->{gen}>";
}

sub learn_ticket
{
	my ($self, $fence, $ticket) = @_;
	my $token = $self->token(_parse($fence));

	return "ticket '$ticket' is not new" if $ticket eq '' || $self->{used}{"$token $ticket"}++;
	$self->{keys}{$fence} = "$token - $ticket";
	$self->_busy($self->{spaces}{ _namespace($fence) }, $fence, "ticket $ticket") if delete $self->{asked}{$fence};
	return;
}

# All reservations, as "name stamp version", sorted.
sub reservations
{
	my ($self, $ns) = @_;
	my $space = $self->{spaces}{$ns} // return ();
	my @found;

	foreach my $fence (keys %{ $space->{pending} })
	{
		push @found, map { "$fence $_ $space->{pending}{$fence}{$_}{w}" } keys %{ $space->{pending}{$fence} };
	}
	foreach my $name (keys %{ $space->{domains} })
	{
		push @found, map { "$name $_ " } keys %{ $space->{domains}{$name}{pending} };
	}
	@found = sort @found;
	return @found;
}

# owner, timeline, epoch and until, as hello tells them.
sub armed
{
	my ($self, $ns) = @_;
	my $space = $self->{spaces}{$ns} // return ('', '', '', '');

	return @{$space}{qw(owner timeline epoch until)};
}

# ---------------------------------------------------------------------------------------------------------------------
# Parts
# ---------------------------------------------------------------------------------------------------------------------

# Namespace and domain of a fence.
sub _parse { return $_[0] =~ /^(.*?):f:(.*?):/; }
sub _namespace { return (_parse($_[0]))[0]; }

sub _domain
{
	my ($self, $space, $name) = @_;

	return $space->{domains}{$name} //= { id => 0, ended => 0, carried => 0, pending => {}, gen => ++$self->{gens} };
}

# The domain if readers may be answered (until 0 is the only lease that is over in these tests).
sub _answers
{
	my ($self, $fence) = @_;
	my ($ns, $name) = _parse($fence);
	my $space = $self->{spaces}{$ns} // return;
	my $domain = $space->{domains}{$name} // return;

	return unless $space->{until} && $domain->{id} && _has($space, $fence);
	return if $space->{slots} && $space->{slots}{ slot_of($fence) } > $domain->{carried};
	return ($space, $domain);
}

# Whether the fence's slot was granted. slots: slot -> number of the grant; none: all were.
sub _has { my ($space, $fence) = @_; return !$space->{slots} || defined $space->{slots}{ slot_of($fence) }; }

# The slots of fences, and no others, of what is written as "a-b,c" or "none"; none for all.
sub _slots
{
	my ($text, $grant) = @_;
	my %slots;

	return if $text eq '';
	foreach my $tag (1 .. 2)
	{
		my $slot = slot_of("{$tag}");
		foreach my $range ($text eq 'none' ? () : split /,/, $text)
		{
			my ($first, $last) = split /-/, $range;
			$slots{$slot} = $grant if $first <= $slot && $slot <= ($last // $first);
		}
	}
	return \%slots;
}

sub _in_epoch
{
	my ($self, $ns, $epoch) = @_;
	my $space = $self->{spaces}{$ns};

	return $space && $space->{epoch} eq $epoch ? $space : undef;
}

# What a fence is under the domain's token: (version, v), (ticket, t), (other) or (none).
sub _fence
{
	my ($self, $fence, $domain) = @_;
	my $text = $self->{keys}{$fence} // return ('none');
	my ($token, $v, $rest) = split / /, $text, 3;

	return ('other') if $self->_token($domain) ne $token;
	return $v eq '-' ? ('ticket', $rest) : ('version', $v);
}

# Whether another reader has been asked to put the value of what the fence says; if not, this one is from now on. Fill
# leases are without end in these tests, or there are none and none is remembered.
sub _busy
{
	my ($self, $space, $fence, $what) = @_;

	return unless $space->{fill_ms};
	return 1 if ($space->{filling}{$fence} // '') eq $what;
	$space->{filling}{$fence} = $what;
	return;
}

sub _set
{
	my ($self, $fence, $domain, $v, $stamp) = @_;

	$self->{keys}{$fence} = $self->_token($domain) . " $v $stamp";
	return;
}

sub _drop_own
{
	my ($space, $fence, $stamp) = @_;
	my $pending = $space->{pending}{$fence} // return;
	my $own = delete $pending->{$stamp};

	delete $space->{pending}{$fence} unless %$pending;
	return $own;
}

# ---------------------------------------------------------------------------------------------------------------------
# The process
# ---------------------------------------------------------------------------------------------------------------------

sub fence_arm
{
	my ($self, $keys, $args) = @_;
	my ($ns) = $keys->[0] =~ /^(.*?):/;
	my ($identity, $epoch, $until, $slots, $owner, $timeline, $settings) = @$args;
	my ($grant) = $settings =~ /"grant": (\d+)/;
	my ($number) = $epoch =~ /^(\d+)/;
	my $space = $self->{spaces}{$ns};

	return ['refused'] if !defined $self->{identity} || $identity ne $self->{identity} || $until <= 1;
	if ($space)
	{
		return ['refused'] if $space->{until} && ($space->{owner} ne $owner || $timeline < $space->{timeline});
		return ['refused'] if $space->{epoch} ne $epoch && $number <= $space->{number};
	}
	if ($space && $space->{epoch} eq $epoch)
	{
		$space->{until} = $until if $until > $space->{until};
	}
	else
	{
		$space = $self->{spaces}{$ns} = {
			owner => $owner, timeline => $timeline, epoch => $epoch, number => $number, until => $until,
			slots => scalar _slots($slots, $grant // 0), pending => {}, domains => {}, filling => {}
		};
		$space->{had} = { %{ $space->{slots} // {} } };
	}
	($space->{fill_ms}) = $settings =~ /"fill_ms": (\d+)/;
	$space->{filling} = {} if !$space->{fill_ms};
	my ($domains) = $settings =~ /"domains": \[(.*?\]|)\]/;
	my ($carried) = $settings =~ /"reservations": \[(.*?\]|)\]/;
	$self->_attach($space, $1, $2) while $domains =~ /\["(.*?)", (\d+)\]/g;
	$self->_domain($space, $1)->{pending}{$2} //= 0 while $carried =~ /\["(.*?)", "(.*?)"\]/g;
	return ['armed'];
}

sub _attach
{
	my ($self, $space, $name, $id) = @_;
	my $domain = $self->_domain($space, $name);

	return if $id <= $domain->{ended} || $id <= $domain->{id};
	$domain->{gen} = ++$self->{gens} if $domain->{id};
	$domain->{id} = $id;
	return;
}

sub fence_renew
{
	my ($self, undef, $args) = @_;
	my ($key, $identity, $epoch, $until, $settings, $text) = @$args;
	my ($ns) = $key =~ /^(.*?):/;
	my $space = $self->_in_epoch($ns, $epoch);
	my ($grant) = $settings =~ /"grant": (\d+)/;
	my $slots = defined $text ? scalar _slots($text, $grant) : undef;

	return ['refused'] if !$space || $identity ne $self->{identity} || $until <= 1;
	return ['refused'] if defined $text && !$slots != !$space->{slots};
	$space->{until} = $until if $until > $space->{until};
	($space->{fill_ms}) = $settings =~ /"fill_ms": (\d+)/;
	$space->{filling} = {} if !$space->{fill_ms};
	$self->_regrant($space, $slots) if $slots;
	return ['renewed'];
}

# What comes anew is of this grant; if any of it was here before, nothing of before is trusted.
sub _regrant
{
	my ($self, $space, $slots) = @_;
	my @came = grep { !defined $space->{slots}{$_} } keys %$slots;

	if (grep { defined $space->{had}{$_} } @came)
	{
		$_->{gen} = ++$self->{gens} foreach values %{ $space->{domains} };
	}
	$slots->{$_} = $space->{slots}{$_} foreach grep { defined $space->{slots}{$_} } keys %$slots;
	$space->{slots} = $slots;
	$space->{had}{$_} = 1 foreach @came;
	return;
}

sub fence_disarm
{
	my ($self, undef, $args) = @_;
	my ($ns, $owner, $timeline) = @$args;
	my $space = $self->{spaces}{$ns} // return ['unarmed'];

	return ['refused'] if $space->{owner} ne $owner || $timeline < $space->{timeline};
	$space->{until} = 0;
	return ['disarmed'];
}

sub fence_announce
{
	my ($self, undef, $args) = @_;
	my ($ns, $epoch, $name, $id, undef, $grant) = @$args;
	my $space = $self->_in_epoch($ns, $epoch) // return ['unarmed'];
	my $domain = $self->_domain($space, $name);

	$self->_attach($space, $name, $id);
	return [ 'announced', 1 ] if $id <= $domain->{ended};
	$domain->{carried} = $grant if defined $grant && $grant > $domain->{carried};
	return [ 'announced', 0 ];
}

# ---------------------------------------------------------------------------------------------------------------------
# Readers
# ---------------------------------------------------------------------------------------------------------------------

# how: '' (or none), 'read only' for fence_get_ro, 'many' for fence_get_many.
sub fence_get
{
	my ($self, $keys, undef, $how) = @_;
	my ($fence, $value) = @$keys;
	my ($space, $domain) = $self->_answers($fence) or return ['unarmed'];

	$how //= '';
	return ['pending'] if $space->{pending}{$fence} || %{ $domain->{pending} };
	my $token = $self->{token}{ $domain->{gen} };
	my ($kind, $what) = $self->_fence($fence, $domain);
	my ($head, $payload) = split /\n/, $self->{keys}{$value} // '', 2;
	return [ 'hit', $token, $what, $payload ] if $kind eq 'version' && defined $payload && $head =~ /^\Q$token $what \E/;
	return [ 'miss', $token, '' ] if $how eq 'read only';
	if ($kind ne 'ticket' && $kind ne 'version')
	{
		$self->{asked}{$fence} = $how eq '';
		return [ 'miss', $token, NEW_TICKET . " $fence" ];
	}
	my @busy = $how eq '' && $self->_busy($space, $fence, "$kind $what") ? ('busy', SOME_MS) : ();
	return [ 'miss', $token, $kind eq 'ticket' ? $what : '', @busy ];
}

sub fence_release
{
	my ($self, $keys) = @_;
	my $space = $self->{spaces}{ _namespace($keys->[0]) };

	delete $space->{filling}{ $keys->[0] } if $space;
	return ['released'];
}

sub fence_get_ro
{
	my ($self, $keys) = @_;

	return $self->fence_get($keys, [], 'read only');
}

# The answers of fence_get in turn, each behind its length; of a hit with the stamp.
sub fence_get_many
{
	my ($self, $keys) = @_;
	my @pairs = @$keys;
	my @reply;

	while (my ($fence, $value) = splice @pairs, 0, 2)
	{
		my @answer = @{ $self->fence_get([ $fence, $value ], [], 'many') };
		push @answer, (split / /, $self->{keys}{$fence}, 3)[2] if $answer[0] eq 'hit';
		push @reply, scalar @answer, @answer;
	}
	return \@reply;
}

sub fence_peek
{
	my ($self, $keys) = @_;
	my ($fence, $value) = @$keys;
	my ($head, $payload) = split /\n/, $self->{keys}{$value} // (return ['none']), 2;
	my ($token, $v, $stamp) = $head =~ /^(\S+) (\d+) (\S*)$/;
	my ($space, $domain) = $self->_answers($fence);
	my @told = ($token, $v, $payload, $stamp);

	return [ 'unknown', @told, '' ] if !$space || $token ne $self->{token}{ $domain->{gen} };
	my ($kind, $newest) = $self->_fence($fence, $domain);
	$newest = '' if $kind ne 'version';
	return [ 'stale', @told, $newest ] if $kind eq 'version' && $v < $newest;
	return [ 'pending', @told, $newest ] if $space->{pending}{$fence} || %{ $domain->{pending} };
	return [ $kind eq 'version' && $v == $newest ? 'fresh' : 'unknown', @told, $newest ];
}

sub fence_current
{
	my ($self, $keys) = @_;
	my $fence = $keys->[0];
	my ($space, $domain) = $self->_answers($fence) or return [];
	my ($kind, $what) = $self->_fence($fence, $domain);

	return [] if $space->{pending}{$fence} || %{ $domain->{pending} } || $kind ne 'version';
	return [ $self->{token}{ $domain->{gen} }, $what ];
}

sub fence_check_many
{
	my ($self, $keys, $args) = @_;
	my @args = @$args;

	return [ map { $self->fence_check([$_], [ splice @args, 0, 2 ]) } @$keys ];
}

sub fence_check
{
	my ($self, $keys, $args) = @_;
	my $fence = $keys->[0];
	my ($token, $version) = @$args;
	my ($space, $domain) = $self->_answers($fence) or return 0;
	my ($kind, $what) = $self->_fence($fence, $domain);

	return 0 if $space->{pending}{$fence} || %{ $domain->{pending} } || $token ne $self->{token}{ $domain->{gen} };
	return $kind eq 'version' && $what == $version ? 1 : 0;
}

sub fence_put
{
	my ($self, $keys, $args) = @_;
	my ($fence, $value) = @$keys;
	my ($token, $ticket, $w, $payload) = @$args;
	my ($space, $domain) = $self->_answers($fence) or return [ 'refused', 'unarmed' ];

	return [ 'refused', 'token' ] if $token ne $self->{token}{ $domain->{gen} };
	my ($kind, $what) = $self->_fence($fence, $domain);
	return [ 'refused', 'no fence' ] if $kind eq 'none';
	return [ 'refused', 'ticket' ] if $kind eq 'other' || $kind eq 'ticket' && $ticket ne $what;
	return [ 'stale', $what ] if $kind eq 'version' && $w < $what;
	$self->_set($fence, $domain, $w, '') unless $kind eq 'version' && $w == $what;
	$self->{keys}{$value} = "$token $w \n$payload";
	return ['stored'];
}

# ---------------------------------------------------------------------------------------------------------------------
# Writers
# ---------------------------------------------------------------------------------------------------------------------

sub fence_reserve
{
	my ($self, $keys, $args) = @_;
	my ($epoch, $stamp, @versions) = @$args;
	my $grant = @versions % 2 ? pop @versions : undef;	# of fence_write only
	my $space = $self->_in_epoch(_namespace($keys->[0]), $epoch);
	my @reply = ('reserved');

	return ['unarmed'] unless $space && $space->{until};
	foreach my $fence (@$keys)
	{
		my ($observed, $w) = splice @versions, 0, 2;
		my $domain = $self->_domain($space, (_parse($fence))[1]);
		my ($kind, $v) = $self->_fence($fence, $domain);
		push(@reply, '-'), next unless _has($space, $fence);
		$self->_set($fence, $domain, $v = $observed, '') if $observed ne '' && $kind eq 'version' && $v < $observed;
		my $own = $space->{pending}{$fence}{$stamp} //= { w => $w };
		$own->{w} = $w if $w > $own->{w};
		$own->{gen} = $domain->{gen};
		$own->{grant} = $grant;
		$own->{over} = $kind eq 'version' && $w <= $v;
		delete $self->{keys}{$fence} unless $kind eq 'version';
		push @reply, '';
	}
	return \@reply;
}

# Somebody's commit has ended: what others were granted before proves nothing any more.
sub _void_grants
{
	my ($space, $fence) = @_;

	$_->{grant} = undef foreach values %{ $space->{pending}{$fence} // {} };
	return;
}

# what: nothing is said of the value ('c'), there is none ('d'), this is it ('v').
sub _commit
{
	my ($self, $space, $fence, $stamp, $w, $what, $payload, $grant) = @_;
	my $domain = $self->_domain($space, (_parse($fence))[1]);
	my $own = _drop_own($space, $fence, $stamp);
	return unless _has($space, $fence);
	my $present = $own && $own->{gen} == $domain->{gen};
	my $proves = $present && defined $own->{grant} && defined $grant && $own->{grant} == $grant;
	my ($kind, $v) = $self->_fence($fence, $domain);
	$kind = 'wrong' if $own && $own->{over} && $kind eq 'version';
	my $is_newest = $kind ne 'version' || $w >= $v;
	my $value = $fence =~ s/:f:/:v:/r;

	my $warms = $what eq 'v' && $kind ne 'version' && $proves;

	$self->_set($fence, $domain, $w, $own && $own->{w} == $w ? $stamp : '') if $warms || $kind eq 'version' && $w > $v;
	delete $self->{keys}{$fence} if !$warms && ($kind ne 'version' || $own && !$present);
	_void_grants($space, $fence);
	return unless $is_newest;
	delete $self->{keys}{$value} if $what eq 'd';
	$self->{keys}{$value} = $self->_token($domain) . " $w $stamp\n$payload"
	  if $what eq 'v' && $proves;
	return;
}

sub fence_commit
{
	my ($self, $keys, $args) = @_;
	my ($epoch, $stamp, @versions) = @$args;
	my $space = $self->_in_epoch(_namespace($keys->[0]), $epoch) // return ['unarmed'];

	$self->_commit($space, $_, $stamp, shift @versions, 'c') foreach @$keys;
	return ['committed'];
}

# Operations on several fences: what the functions for one do, in their order.
sub fence_write
{
	my ($self, undef, $args) = @_;
	my ($n, @rest) = @$args;
	my @fences = splice @rest, 0, $n;
	my $epoch = shift @rest;
	my $space = $self->_in_epoch(_namespace($fences[0]), $epoch) // return ['unarmed'];
	my @reply = ('written');

	foreach my $fence (@fences)
	{
		my ($op, $stamp) = splice @rest, 0, 2;
		if ($op eq 'a') { $self->fence_abort([$fence], [ $epoch, $stamp ]); }
		elsif ($op =~ /[cd]/) { $self->_commit($space, $fence, $stamp, shift @rest, $op); }
		elsif ($op eq 'v')
		{
			my ($w, undef, $payload, $grant) = splice @rest, 0, 4;
			$self->_commit($space, $fence, $stamp, $w, $op, $payload, $grant);
		}
		else
		{
			my $answer = $self->fence_reserve([$fence], [ $epoch, $stamp, splice @rest, 0, $op eq 'g' ? 3 : 2 ]);
			push @reply, $answer->[0] eq 'unarmed' ? '-' : $answer->[1];
		}
	}
	return \@reply;
}

sub fence_abort
{
	my ($self, $keys, $args) = @_;
	my ($epoch, $stamp) = @$args;
	my $space = $self->_in_epoch(_namespace($keys->[0]), $epoch) // return ['unarmed'];

	_drop_own($space, $_, $stamp) foreach @$keys;
	return ['aborted'];
}

sub fence_settle
{
	my ($self, undef, $args) = @_;
	my ($ns, $fence, $epoch, $stamp, $u) = @$args;
	my $space = $self->_in_epoch($ns, $epoch) // return ['unarmed'];

	if (!_has($space, $fence)) { _drop_own($space, $fence, $stamp); }
	elsif ($u ne '')
	{
		$self->_commit($space, $fence, $stamp, $u, 'c');
	}
	else
	{
		_drop_own($space, $fence, $stamp);
		_void_grants($space, $fence);
		delete $self->{keys}{$fence};
	}
	return ['settled'];
}

sub fence_repair
{
	my ($self, $keys, $args) = @_;
	my $fence = $keys->[0];
	my ($epoch, $seen, $u) = @$args;
	my $space = $self->_in_epoch(_namespace($fence), $epoch) // return ['unarmed'];
	return ['unarmed'] unless _has($space, $fence);
	my $domain = $self->_domain($space, (_parse($fence))[1]);
	my ($kind, $v) = $self->_fence($fence, $domain);

	return ['unchanged'] if $kind ne 'version' || $space->{pending}{$fence} || %{ $domain->{pending} };
	if ($u ne '' && $u > $v)
	{
		$self->_set($fence, $domain, $u, '');
		return ['repaired'];
	}
	return ['unchanged'] if $v != $seen || $u ne '' && $u == $v;
	delete $self->{keys}{$fence};
	return ['repaired'];
}

# ---------------------------------------------------------------------------------------------------------------------
# Domains
# ---------------------------------------------------------------------------------------------------------------------

sub fence_domain_reserve
{
	my ($self, undef, $args) = @_;
	my ($ns, $name, $epoch, $stamp, $ended) = @$args;
	my $space = $self->_in_epoch($ns, $epoch);

	return ['unarmed'] unless $space && $space->{until};
	my $pending = $self->_domain($space, $name)->{pending};
	$pending->{$stamp} = $ended || 0 if ($ended || 0) >= ($pending->{$stamp} // 0);
	return ['reserved'];
}

sub fence_domain_commit
{
	my ($self, undef, $args) = @_;
	my ($ns, $name, $epoch, $stamp) = @$args;
	my $space = $self->_in_epoch($ns, $epoch) // return ['unarmed'];
	my $domain = $self->_domain($space, $name);
	my $ended = delete $domain->{pending}{$stamp} // return ['committed'];

	$domain->{ended} = $ended if $ended > $domain->{ended};
	$domain->{id} = 0 if $domain->{id} && $domain->{id} <= $domain->{ended};
	$domain->{gen} = ++$self->{gens};
	return ['committed'];
}

sub fence_domain_abort
{
	my ($self, undef, $args) = @_;
	my ($ns, $name, $epoch, $stamp) = @$args;
	my $space = $self->_in_epoch($ns, $epoch) // return ['unarmed'];

	delete $self->_domain($space, $name)->{pending}{$stamp};
	return ['aborted'];
}

1;
