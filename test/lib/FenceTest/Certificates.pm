# FenceTest/Certificates.pm
#    Certificates for private TLS servers, made by the program openssl.
#
# Owns: a temporary directory with a certificate authority and the certificates that it has signed.
#
#    my $authority = FenceTest::Certificates->new;
#    my ($cert, $key) = $authority->issue('server', 'DNS:localhost,IP:127.0.0.1');
#    $authority->file;    # the authority's own certificate
package FenceTest::Certificates;

use strict;
use warnings;

use Carp;
use File::Temp;
use POSIX ();

# Whether the program openssl is installed.
sub available { return system('openssl version >/dev/null 2>&1') == 0; }

sub new
{
	my ($class) = @_;
	my $self = bless { dir => File::Temp->newdir('fence_tls_XXXXXX', TMPDIR => 1) }, $class;
	my $dir = $self->{dir};

	$self->_write('ca.conf', <<"CONF");
[ca]
default_ca = authority
[authority]
new_certs_dir = $dir
database = $dir/index
serial = $dir/serial
certificate = $dir/ca.crt
private_key = $dir/ca.key
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
[req]
distinguished_name = any
CONF
	$self->_write('index', '');
	$self->_write('serial', "01\n");
	$self->_openssl('req', '-x509', '-config', "$dir/ca.conf", '-newkey', 'rsa:2048', '-nodes', '-days', '30', '-subj', '/CN=authority',
		'-addext', 'basicConstraints=critical,CA:true', '-keyout', "$dir/ca.key", '-out', "$dir/ca.crt");
	return $self;
}

sub file { return "$_[0]{dir}/ca.crt"; }
sub dir { return "$_[0]{dir}"; }

# Issues a certificate for these subjectAltNames. Returns the files of the certificate and its key. Further arguments are for "openssl ca".
sub issue
{
	my ($self, $name, $names, @more) = @_;
	my $dir = $self->{dir};

	$self->_write("$name.ext", "subjectAltName=$names\n");
	$self->_openssl('req', '-new', '-config', "$dir/ca.conf", '-newkey', 'rsa:2048', '-nodes', '-subj', "/CN=$name.invalid",
		'-keyout', "$dir/$name.key", '-out', "$dir/$name.csr");
	$self->_openssl('ca', '-batch', '-notext', '-config', "$dir/ca.conf", '-days', '30', '-extfile', "$dir/$name.ext", @more,
		'-in', "$dir/$name.csr", '-out', "$dir/$name.crt");
	return ("$dir/$name.crt", "$dir/$name.key");
}

# Lines of redis.conf for a server with that certificate at a TLS port.
sub redis_config
{
	my ($self, $port, $cert, $key, $clients) = @_;

	return ("tls-port $port", "tls-cert-file $cert", "tls-key-file $key", 'tls-ca-cert-file ' . $self->file,
		'tls-auth-clients ' . ($clients // 'no'));
}

sub _write
{
	my ($self, $name, $text) = @_;

	open my $fh, '>', "$self->{dir}/$name" or croak "$name: $!";
	print $fh $text;
	close $fh;
	return;
}

sub _openssl
{
	my ($self, @words) = @_;
	my $log = "$self->{dir}/openssl.log";
	my $pid = fork() // croak "fork: $!";

	if ($pid == 0)
	{
		open STDIN,  '<',  '/dev/null';
		open STDOUT, '>', $log;
		open STDERR, '>&', \*STDOUT;
		exec 'openssl', @words or POSIX::_exit(127);
	}
	waitpid $pid, 0;
	return if $? == 0;
	open my $fh, '<', $log;
	local $/;
	croak "openssl @words: " . <$fh>;
}

1;
